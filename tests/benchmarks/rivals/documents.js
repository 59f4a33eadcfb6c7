// The cleanup loop of Seepient's documentation: read every file, parse it, compare updatedAt.
const fs = require('fs').promises
const path = require('path')

async function main (folder, hours) {
  const cutoff = Date.now() - hours * 3600 * 1000
  let old = 0
  for (const name of await fs.readdir(folder)) {
    if (!name.endsWith('.json')) continue
    const document = JSON.parse(await fs.readFile(path.join(folder, name), 'utf8'))
    if (document.updatedAt < cutoff) old++
  }
  console.log(old)
}

main(process.argv[2], 24)
