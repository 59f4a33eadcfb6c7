// Reads lines of JSON, parses each and writes JSON.stringify(value, null, indent) as a JSON string, line by line.
'use strict'
const indent = Number(process.argv[2])
const input = require('node:fs').readFileSync(0, 'utf8')
for (const line of input.split('\n')) {
  if (line) process.stdout.write(JSON.stringify(JSON.stringify(JSON.parse(line), null, indent)) + '\n')
}
