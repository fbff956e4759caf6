"""What you will see: what the capability database knows of two phones, without having them."""

from gpuedge.capdb import lookup

phones = {
    "a phone with an old PowerVR": {
        "api": "vulkan",
        "os": "android",
        "vendorID": "0x1010",
        "deviceName": "PowerVR Rogue GE8320",
    },
    "a phone with an Adreno 630 and its driver of 2021": {
        "api": "gles",
        "os": "android",
        "GL_VENDOR": "Qualcomm",
        "GL_RENDERER": "Adreno (TM) 630",
        "GL_VERSION": "OpenGL ES 3.2 V@490.0 (GIT@85da404, I46ff5fc46f) (Date:11/30/20)",
    },
}

for title, record in phones.items():
    found = lookup(record)
    print(f"--- {title}")
    print(f"    driver versions: {dict(found.subject.versions) or 'not known'}")
    for finding in found.relevant:
        print(f"    {finding.id:14s} {finding.result:8s} {finding.becomes:8s} {finding.summary}")
    tests = sorted({name for demand in found.demands for name in demand.tests})
    print(f"    before it is used: {', '.join(tests) or 'the usual known answers'}")
    blocked = found.blocks(record["api"])
    print(f"    blocked by: {blocked or 'nothing'}")
