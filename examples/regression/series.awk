# Add 1/n^power for n from 1 to 10,000, and print the sum.
BEGIN {
    for (n = 1; n <= 10000; n++) sum += 1 / n ^ power
    printf "sum %.16g\n", sum
    printf "%.6f\n", sum > "rounded.txt"
}
