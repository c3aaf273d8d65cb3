"""What of a price is refunded, by the days since the purchase."""

import sys

price, days = float(sys.argv[1]), int(sys.argv[2])
print(f"{price if days <= 30 else 0:.2f}")
