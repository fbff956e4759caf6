"""Every ESSL 1.00 text is taken by a context that enforces Appendix A of the specification.

Other software drivers accept loops and indices that devices of OpenGL ES 2.0 need not.
"""

from __future__ import annotations

import json
from pathlib import Path

import daily
import essl_corpus
import pytest
from gles_child import run

pytestmark = [pytest.mark.driver, daily.day(2, of=4)]


DAYS = 4
"""So many days it takes until every text was compiled."""


@pytest.mark.parametrize("days", [DAYS, pytest.param(1, marks=pytest.mark.long)])
def test_every_text_is_taken(days: int, tmp_path: Path) -> None:
    texts = dict(list(essl_corpus.corpus("essl100"))[daily.turn(days) :: days])
    file = tmp_path / "texts.json"
    file.write_text(json.dumps(texts))
    run("gles20-angle", ("webgl", {"file": str(file)}))
