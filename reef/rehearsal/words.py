"""Key words: how the model decides whether a skill concerns a task, and what to call the skill it proposes."""

from __future__ import annotations

import re

_STOP_TEXT = """
a about above after all also always an and any are as at be been before below but by call called can case check concern content contain
do does done each either every expect expected file find first follow following for form format from get give given got had has have how
if in instead into is it its just like make many may more must named need never new no not of on one only or other our out over please
put read right same say should so some such task tell text than that the their them then there these they thing this to up use user
used using very want was way we were what when where which while who why will with within without wrong word work would write writing
written wrote you your january february march april june july august september october november december
"""
_STOP = frozenset(_STOP_TEXT.split())


def key_words(text: str) -> list[str]:
    """Words that say what a text is about, singular, each once, in order."""
    words = re.findall(r"[a-z]+(?:-[a-z]+)*", re.sub(r"[\w/-]+\.\w+", " ", text.lower()))
    singular = (word[:-1] if word.endswith("s") and not word.endswith("ss") else word for word in words if word not in _STOP)
    return list(dict.fromkeys(word for word in singular if word not in _STOP and len(word) > 2))
