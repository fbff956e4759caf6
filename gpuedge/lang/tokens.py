"""Kernel text to tokens, and the one way errors point into it."""

from __future__ import annotations

import re
from typing import NoReturn

from gpuedge.core.errors import KernelSyntaxError

DEFAULT_EPILOGUE = "vec4 epilogue(vec4 v, ivec4 p) { return v; }"

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)"
    r"|(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)"
    r"|(?P<int>\d+)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op>\+\+|--|<<|>>|[-+*/%<>=!]=|&&|\|\||[-+*/%<>=!?:;,.(){}\[\]])"
    r"|(?P<bad>.)",
    re.DOTALL | re.ASCII,
)
_HOOK = re.compile(r"//[ \t]*EPILOGUE[ \t\r]*")

_BAD_HINTS = {
    "#": "there is no preprocessor: use const int, and give values with consts=",
    "&": "bit operators are not in the language; the logical one is &&",
    "|": "bit operators are not in the language; the logical one is ||",
    "^": "bit operators are not in the language",
    "~": "bit operators are not in the language",
    '"': "there are no strings",
}


class Tokens:
    """Tokens of a kernel text with its epilogue spliced in where the line ``//EPILOGUE`` stands.

    `texts`, `kinds` and `offsets` run in parallel and end with one token of kind ``end``. An offset
    at or beyond `splice` lies in the epilogue text.
    """

    def __init__(self, text: str, filename: str, epilogue: str | None, epilogue_name: str) -> None:
        self.text = text
        self.filename = filename
        self.epilogue = DEFAULT_EPILOGUE if epilogue is None else epilogue
        self.epilogue_name = epilogue_name
        self.splice = len(text) + 1
        self.texts: list[str] = []
        self.kinds: list[str] = []
        self.offsets: list[int] = []
        self.has_hook = False
        self._scan(text, 0)
        if epilogue is not None and not self.has_hook:
            self.fail("an epilogue was given, but the text has no line //EPILOGUE", 0)
        self.texts.append("")
        self.kinds.append("end")
        self.offsets.append(len(text))

    def _scan(self, text: str, base: int) -> None:
        texts, kinds, offsets = self.texts, self.kinds, self.offsets
        number_end = -1
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or ""
            if kind == "space":
                continue
            found = match.group()
            at = match.start()
            if kind == "comment":
                if base == 0 and _HOOK.fullmatch(found):
                    self._splice(at)
                continue
            if at == number_end and kind in ("name", "float", "int"):
                self._bad_number(found, base + at)
            if kind == "bad":
                self.fail(f"unexpected character {found!r}", base + at, _BAD_HINTS.get(found))
            if kind in ("int", "float"):
                number_end = match.end()
            texts.append(found)
            kinds.append(kind)
            offsets.append(base + at)

    def _splice(self, at: int) -> None:
        if self.has_hook:
            self.fail("//EPILOGUE may stand in one place only", at)
        self.has_hook = True
        self._scan(self.epilogue, self.splice)

    def _bad_number(self, suffix: str, offset: int) -> NoReturn:
        hint = "numbers have no suffix: write 1.0, not 1.0f or 1u; there is no hexadecimal"
        self.fail(f"{suffix!r} right after a number", offset, hint)

    def fail(self, message: str, offset: int, hint: str | None = None) -> NoReturn:
        """Raise KernelSyntaxError (GE-301) that shows where in which text `offset` lies."""
        text, name = self.text, self.filename
        if offset >= self.splice:
            text, name = self.epilogue, self.epilogue_name
            offset -= self.splice
        start = text.rfind("\n", 0, offset) + 1
        line = text[start:].split("\n", 1)[0].rstrip()
        column = offset - start
        # Tabs are kept, so that the caret stands under the column whatever a tab's width is.
        pad = "".join("\t" if c == "\t" else " " for c in text[start:offset])
        where = f"{name}:{text.count(chr(10), 0, offset) + 1}:{column + 1}"
        raise KernelSyntaxError(f"{where}: {message}\n    {line}\n    {pad}^", hint=hint)
