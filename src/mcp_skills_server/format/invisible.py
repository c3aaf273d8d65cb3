"""The sets of characters that may be hidden, and the pattern for text beyond ASCII. Compiling it takes milliseconds.

The sets follow Unicode's Default_Ignorable_Code_Point and Bidi_Control, with control characters beside them. Every
pattern looks at one character and its two neighbours, so that the time is linear in the text.
"""

from __future__ import annotations

import re
from typing import Final

_SELECTORS: Final = "\ufe00-\ufe0f"
_IDEOGRAPHS: Final = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_RIGHT_TO_LEFT: Final = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
_MONGOLIAN: Final = "\u1820-\u18aa"
_ALWAYS: Final = (
    "\x00-\x08\x0b\x0e-\x1f\x7f-\x9f"  # controls, but for tab, line feed, form feed and carriage return
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2028\u2029\u2060-\u206f\u3164\uffa0\ufff0-\ufffb"
    "\u202a-\u202e"  # direction overrides
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # tag characters: a whole hidden alphabet
)
INVISIBLE: Final = (
    f"{_ALWAYS}{_SELECTORS}\u061c\u180b-\u180d\u180f\u200c-\u200f\ufeff\U000e0100-\U000e01ef"  # whatever stands around
)
"""For a character class: all that may be hidden, whatever stands around."""
ANY: Final = re.compile(f"[{INVISIBLE}]")
HIDDEN: Final = re.compile(
    f"[{_ALWAYS}]"
    f"|(?<=[\x00-\x7f{INVISIBLE}])(?<![0-9#*])[{_SELECTORS}]"  # a keycap's digit may be followed by one
    f"|(?<![{_IDEOGRAPHS}])[\U000e0100-\U000e01ef]"
    f"|(?<![{_MONGOLIAN}])[\u180b-\u180d\u180f]"
    f"|(?<![{_RIGHT_TO_LEFT}])[\u061c\u200e\u200f](?![{_RIGHT_TO_LEFT}])"
    # A joiner joins two characters of a script that has joins, or two emoji; a selector may stand before it.
    f"|[\u200c\u200d](?=[\x00-\x7f{INVISIBLE}]|\\Z)|(?<=[\x00-\x7f])[\u200c\u200d]"
    f"|(?<=[{INVISIBLE}])(?<![{_SELECTORS}])[\u200c\u200d]"
    f"|\\A[{_SELECTORS}\u200c\u200d]"
    "|(?<!\\A)\ufeff"
)
