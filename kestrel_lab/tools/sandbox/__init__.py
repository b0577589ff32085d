"""Commands held in: how far a program that an agent starts can reach, tested before it is relied on."""
