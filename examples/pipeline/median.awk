# Print the median of sorted numbers.
{ value[NR] = $1 }
END { print "median", (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }
