"""Cases with known truth, and how verdicts are held against them."""
