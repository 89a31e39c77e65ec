# The map x -> r x (1 - x): between which values x stays in the end, and how many values there are.
BEGIN {
    x = 0.5
    for (step = 0; step < 5000; step++) x = r * x * (1 - x)
    for (step = 0; step < 64; step++) {
        x = r * x * (1 - x)
        seen[sprintf("%.4f", x)] = 1
        if (step == 0 || x < low) low = x
        if (step == 0 || x > high) high = x
    }
    print "low " low
    print "high " high
    for (value in seen) period++
    print "period " period
}
