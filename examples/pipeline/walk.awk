# Print the places of a random walk of 1,000 steps. The numbers are the same with each awk.
BEGIN {
    number = walk
    for (step = 0; step < 1000; step++) {
        number = (number * 16807) % 2147483647
        place += (number % 2) ? 1 : -1
        print place
    }
}
