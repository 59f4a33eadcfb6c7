"""SET every document of a folder in a Redis, one after the other."""

import sys
from pathlib import Path

import redis

client = redis.Redis.from_url(sys.argv[1])
for path in Path(sys.argv[2]).iterdir():
    client.set(f"seepient:session:{path.stem}", path.read_bytes())
