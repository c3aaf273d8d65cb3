"""Print how many words the first argument has."""

import sys

print(len(sys.argv[1].split()))
