"""The limit: what any server in CPython costs. A loop over lines that parses each and answers a constant.

`python -I -S bare_loop.py FILE`. FILE is JSON: method -> result. It has no SDK, no event loop and no validation.
"""

import json
import os
import sys


def main() -> None:
    """Answer until stdin closes."""
    with open(sys.argv[1], "rb") as file:
        results = {method: json.dumps(result, separators=(",", ":")) for method, result in json.load(file).items()}
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        answers: list[str] = []
        for line in lines:
            message = json.loads(line)
            if "id" in message:
                answers.append(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{results[message["method"]]}}}\n')
        left = memoryview("".join(answers).encode())
        while left:
            left = left[os.write(1, left) :]


if __name__ == "__main__":
    main()
