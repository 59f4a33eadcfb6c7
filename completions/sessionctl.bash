# bash completion for sessionctl. Load it with: source <(sessionctl completion bash)
# or put it into /etc/bash_completion.d/sessionctl
_sessionctl() {
  local line="${COMP_LINE:0:COMP_POINT}" value help
  local word="${line##*[[:space:]]}" done=""
  # bash takes what stands before a colon or = for a word of its own; only what follows may be offered
  if [[ $word == *[:=]* ]]; then
    local last="${word##*[:=]}"
    done="${word%"$last"}"
    case "$COMP_WORDBREAKS" in
      *:*) ;;
      *) [[ $done == *: ]] && done="" ;;
    esac
    [[ $done == --*= ]] && done=""
  fi
  COMPREPLY=()
  while IFS=$'\t' read -r value help; do
    [[ -n $value ]] && COMPREPLY+=("$(printf %q "${value#"$done"}")")
  done < <(_TYPER_COMPLETE_ARGS="$line" _SESSIONCTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args "$1" 2>/dev/null)
}
complete -o default -F _sessionctl sessionctl
