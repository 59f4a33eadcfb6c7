// The same loop over logs: read every file, parse it line by line.
const fs = require('fs').promises
const path = require('path')

async function main (folder) {
  let entries = 0
  for (const name of await fs.readdir(folder)) {
    if (!name.endsWith('.jsonl')) continue
    const text = await fs.readFile(path.join(folder, name), 'utf8')
    for (const line of text.split('\n')) {
      if (line) entries += JSON.parse(line).id.length > 0
    }
  }
  console.log(entries)
}

main(process.argv[2])
