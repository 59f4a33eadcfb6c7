"""GET every document of a Redis, one after the other, and parse none."""

import sys

import redis

client = redis.Redis.from_url(sys.argv[1])
size = 0
for key in client.scan_iter(match="seepient:session:*", count=1000):
    size += len(client.get(key) or b"")
print(size)
