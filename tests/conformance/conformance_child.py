"""A conformance child that misbehaves: what it does with a case stands in the case's fate.

Usage: python conformance_child.py FATES, a JSON object of case id to fate; ``*`` is all others. The
fate ``batch`` fails after any other case, ``after ID`` after that case, ``once FILE`` the first
time of all; the fate of ``open`` may be ``until FILE N``, which dies from then on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    request = json.loads(sys.stdin.readline())
    fates = json.loads(sys.argv[1])
    out = Path(request["result"]).open("a", encoding="utf-8")  # noqa: SIM115

    def send(event: str, **fields: object) -> None:
        own = {"token": request["token"], "event": event, "at": 0, "when": 0.0, "cpu": 0.0}
        out.write(json.dumps({**own, **fields}) + "\n")
        out.flush()

    if fates.get("open") == "refuse":
        send("failed", code="GE-103", what="No such device.", known=None, hint=None)
        return
    if fates.get("open", "").startswith("until "):
        _, file, most = fates["open"].split()
        with Path(file).open("a+") as opened:
            opened.write(".")
            fates["open"] = "die" if opened.tell() > int(most) else ""
    if fates.get("open") == "die":
        print("the driver says goodbye", flush=True)
        sys.exit(3)
    if fates.get("open") == "hang":
        time.sleep(600)
    send("open", device="fake:0", identity={"name": "Fake"}, caps={"level": "fake"}, versions={})
    for number, name in enumerate(request["ids"]):
        send("start", id=name)
        fate = fates.get(name, fates.get("*", "pass"))
        if fate.startswith("after "):
            fate = "failed" if fate[6:] in request["ids"][:number] else "pass"
        if fate.startswith("batch"):
            fate = "failed" if number >= int(fate[5:] or 1) else "pass"
        if fate.startswith("once "):
            seen = Path(fate[5:])
            fate = "pass" if seen.exists() else "segfault" if seen.suffix == ".dies" else "failed"
            seen.touch()
        if fate == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fate == "exit":
            print("giving up", flush=True)
            os._exit(0)
        if fate == "hang":
            subprocess.Popen(["sleep", "600"])  # a process of the driver, in the same group
            time.sleep(600)
        if fate == "scribble":
            out.write('{"token": "other", "event": "row", "row": {}}\nno JSON\n{"torn')
            out.write("\n")
        if fate == "slow":
            time.sleep(0.3)
        status = fate if fate in ("failed", "error", "skipped") else "passed"
        row = {"id": name, "op": name.split("/")[0], "status": status, "seconds": 0.01}
        send("row", row=row if status == "passed" else {**row, "reason": "so it is"})
        if fate == "spent":
            break
    send("done")
    if fates.get("close") == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)


main()
