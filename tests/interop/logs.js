// Appends user messages to a log as LoopEngine does (FORMATS.md section 2), then writes its history as JSON:
// node logs.js FOLDER KEY TEXT...
'use strict'
const fs = require('node:fs')
const path = require('node:path')
const { randomUUID } = require('node:crypto')
const [folder, key, ...texts] = process.argv.slice(2)
const file = path.join(folder, `${key.replace(/[/\\]/g, '_')}.jsonl`)

const read = () =>
  fs.existsSync(file)
    ? fs.readFileSync(file, 'utf8').split('\n').filter((line) => line.length > 0).map((line) => JSON.parse(line))
    : []

let parentId = read().at(-1)?.id ?? null
const lines = texts.map((content) => {
  const entry = { id: randomUUID(), parentId, message: { role: 'user', content } }
  parentId = entry.id
  return JSON.stringify(entry)
})
fs.mkdirSync(folder, { recursive: true })
fs.appendFileSync(file, `${lines.join('\n')}\n`)

const entries = read()
const byId = new Map(entries.map((entry) => [entry.id, entry]))
const history = []
for (let entry = entries.at(-1); entry; entry = byId.get(entry.parentId)) history.unshift(entry.message)
process.stdout.write(JSON.stringify(history))
