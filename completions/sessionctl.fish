# fish completion for sessionctl. Load it with: sessionctl completion fish | source
# or put it as sessionctl.fish into ~/.config/fish/completions
function __sessionctl_complete
    set -l found (env _SESSIONCTL_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) sessionctl 2>/dev/null         | string match --invert '')
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command sessionctl --no-files --keep-order --arguments '(__sessionctl_complete)'
