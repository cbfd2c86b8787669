#!/usr/bin/env python3
"""Makes the reference of the installed headers with Doxygen.

    reference.py DOXYGEN DOXYFILE FOLDER    writes FOLDER/html; Doxyfile's OUTPUT_DIRECTORY is FOLDER

Exits with 1 and prints the reason if Doxygen prints a warning, or if a class, struct or enum has no
description.
"""

import pathlib
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree


def has_text(node):
    return any("".join(part.itertext()).strip() for name in ("briefdescription", "detaileddescription")
               for part in node.findall(name))


def undescribed(xml):
    """The public types in Doxygen's XML that have no description, and their places."""
    found = []
    for path in sorted(xml.glob("*.xml")):
        for compound in ElementTree.parse(path).getroot().findall("compounddef"):
            name = compound.findtext("compoundname", "")
            if compound.get("kind") in ("class", "struct"):
                if compound.get("prot") == "public" and not name.startswith("std::") and not has_text(compound):
                    found.append((compound.find("location"), name))
            if compound.get("kind") not in ("class", "struct", "namespace"):
                continue
            for member in compound.iter("memberdef"):
                if member.get("kind") == "enum" and member.get("prot") == "public" and not has_text(member):
                    found.append((member.find("location"), f"{name}::{member.findtext('name')}"))
    return [f"{place.get('file')}:{place.get('line')}: {name} has no description" for place, name in found]


def main():
    doxygen, doxyfile, folder = sys.argv[1:]
    if not shutil.which(doxygen):
        print("reference.py: doxygen is not there; scripts/bootstrap installs it")
        return 1
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    done = subprocess.run([doxygen, doxyfile], capture_output=True, text=True)
    problems = (done.stdout + done.stderr).strip()
    if done.returncode != 0 or problems:
        print(problems or f"doxygen ended with {done.returncode}")
        return 1
    missing = undescribed(folder / "xml")
    print("\n".join(missing) if missing else f"{folder / 'html' / 'index.html'}: no warnings, every type is described")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
