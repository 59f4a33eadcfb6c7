"""``sessionctl completion``: the scripts that make shells complete. They ask sessionctl, so they never grow old."""

from __future__ import annotations

from typing import Annotated

import typer

from .complete import words
from .options import choice

app = typer.Typer(add_completion=False)

_ASK = "_SESSIONCTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args"

BASH = f"""\
# bash completion for sessionctl. Load it with: source <(sessionctl completion bash)
# or put it into /etc/bash_completion.d/sessionctl
_sessionctl() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" value help
  local word="${{line##*[[:space:]]}}" done=""
  # bash takes what stands before a colon or = for a word of its own; only what follows may be offered
  if [[ $word == *[:=]* ]]; then
    local last="${{word##*[:=]}}"
    done="${{word%"$last"}}"
    case "$COMP_WORDBREAKS" in
      *:*) ;;
      *) [[ $done == *: ]] && done="" ;;
    esac
    [[ $done == --*= ]] && done=""
  fi
  COMPREPLY=()
  while IFS=$'\\t' read -r value help; do
    [[ -n $value ]] && COMPREPLY+=("$(printf %q "${{value#"$done"}}")")
  done < <(_TYPER_COMPLETE_ARGS="$line" {_ASK} "$1" 2>/dev/null)
}}
complete -o default -F _sessionctl sessionctl
"""

ZSH = f"""\
#compdef sessionctl
# zsh completion for sessionctl. Put it as _sessionctl into a folder of $fpath
# or load it with: source <(sessionctl completion zsh)
_sessionctl() {{
  local -a found
  local value help
  while IFS=$'\\t' read -r value help; do
    [[ -n $value ]] && found+=("${{value//:/\\\\:}}${{help:+:$help}}")
  done < <(_TYPER_COMPLETE_ARGS="${{(j: :)words[1,CURRENT]}}" {_ASK} "${{words[1]}}" 2>/dev/null)
  if (( $#found )); then
    _describe -V sessionctl found
  else
    _files
  fi
}}
if [[ $funcstack[1] == _sessionctl ]]; then
  _sessionctl "$@"
elif (( $+functions[compdef] )); then
  compdef _sessionctl sessionctl
fi
"""

FISH = f"""\
# fish completion for sessionctl. Load it with: sessionctl completion fish | source
# or put it as sessionctl.fish into ~/.config/fish/completions
function __sessionctl_complete
    set -l found (env {_ASK} _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) sessionctl 2>/dev/null \
        | string match --invert '')
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command sessionctl --no-files --keep-order --arguments '(__sessionctl_complete)'
"""

POWERSHELL = """\
# PowerShell completion for sessionctl. Load it with: sessionctl completion powershell | Out-String | Invoke-Expression
# or put that line into $PROFILE
Register-ArgumentCompleter -Native -CommandName sessionctl -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $line = $commandAst.ToString()
    if ($line.Length -lt $cursorPosition) { $line += ' ' }
    $env:_SESSIONCTL_COMPLETE = 'complete_fish'
    $env:_TYPER_COMPLETE_FISH_ACTION = 'get-args'
    $env:_TYPER_COMPLETE_ARGS = $line
    try {
        sessionctl 2>$null | ForEach-Object {
            $value, $help = $_ -split "`t", 2
            if (-not $help) { $help = $value }
            [System.Management.Automation.CompletionResult]::new($value, $value, 'ParameterValue', $help)
        }
    } finally {
        Remove-Item Env:_SESSIONCTL_COMPLETE, Env:_TYPER_COMPLETE_FISH_ACTION, Env:_TYPER_COMPLETE_ARGS
    }
}
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH, "powershell": POWERSHELL}
"""Shell to script."""


@app.command(epilog="Examples:\n\n  sessionctl completion bash\n\n  sessionctl completion fish | head -n 2")
def completion(
    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help=", ".join(SCRIPTS) + ".", autocompletion=words(*SCRIPTS))
    ],
) -> None:
    """Print the script that makes a shell complete commands, options, statuses, store names and session keys."""
    print(SCRIPTS[choice("shell", shell, tuple(SCRIPTS))], end="")
