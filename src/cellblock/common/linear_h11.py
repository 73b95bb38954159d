"""Makes h11 parse header lines in linear time. Modules that let it parse hostile bytes import this one.

h11 0.16 needs 25 s for a line of 60 KB of blanks before an illegal character: it tries each division of them between the
blanks before and after an empty value. A value never begins with a blank, so the first ones can be taken without retries.
"""

from __future__ import annotations

import re

from h11 import _readers

_BLANKS = rb":[ \t]*"
_ALL_BLANKS = _BLANKS + b"+"

_readers.header_field_re = re.compile(_readers.header_field_re.pattern.replace(_BLANKS, _ALL_BLANKS, 1))
