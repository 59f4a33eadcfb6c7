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
