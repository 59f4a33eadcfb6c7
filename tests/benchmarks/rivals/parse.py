"""Parse a document, or a log line by line, with ``json`` and print its last five messages."""

import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
if path.suffix == ".json":
    messages = json.loads(path.read_bytes())["messages"]
else:
    with path.open("rb") as lines:
        messages = [json.loads(line)["message"] for line in lines]
for message in messages[-5:]:
    print(json.dumps(message))
