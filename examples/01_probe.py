"""What you will see: every GPU driver found here, which ones work, and why the others do not."""

import gpuedge

report = gpuedge.probe()  # drivers run in child processes; the verdicts are kept on disk
print(report)

print()
if report.best is None:
    print("best device: none, work goes to the CPU")
else:
    print("best device:", report.best.device, "-", report.best.name)

for row in report.tried:
    if row.status != "ok":
        print(f"not used: {row.device}: {row.status} ({row.code})")
