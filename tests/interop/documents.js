// Saves a session as Seepient does (FORMATS.md section 1): node documents.js FOLDER ID
// Reads it if it is there, adds the same messages each time, and writes the whole file anew.
'use strict'
const fs = require('node:fs')
const path = require('node:path')
const [folder, id] = process.argv.slice(2)
const file = path.join(folder, `${id}.json`)
const stored = fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, 'utf8')) : undefined
const messages = [
  ...(stored?.messages ?? []),
  { id: 'u', role: 'user', content: 'Grüße 😀 \u2028 \ud800 "\\/\b\u0001', timestamp: 1796000000000 },
  {
    id: 'a',
    role: 'assistant',
    content: '',
    toolCalls: [{ id: 'c', name: 'sum', arguments: { n: [1e21, -0, 1.5e-7, 1.0, 123456789.5, 5e-324], e: {}, l: [] } }],
    timestamp: 1796000000001,
  },
]
const document = {
  id,
  messages,
  createdAt: stored?.createdAt ?? Date.now(),
  updatedAt: Date.now(),
  provider: stored?.provider ?? 'anthropic',
  model: stored?.model,
  principalId: stored?.principalId ?? 'sdk-user',
  metadata: stored?.metadata ?? { title: 'T', nested: { a: [null, true] } },
}
fs.mkdirSync(folder, { recursive: true })
const temporary = `${file}.tmp.${Date.now()}`
fs.writeFileSync(temporary, JSON.stringify(document, null, 2))
fs.renameSync(temporary, file)
