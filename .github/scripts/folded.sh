#!/bin/sh
# folded.sh TITLE CODE FILE: output of a command as a comment, folded away, with its verdict; cut where a comment ends.
set -eu
title=$1 code=$2 file=$3
limit=60000
case $code in 0) verdict='goes through' ;; *) verdict="stopped (exit code $code)" ;; esac
printf '<!-- fleet %s -->\n**fleet %s**: %s\n\n' "$title" "$title" "$verdict"
printf '<details><summary>Output</summary>\n\n```text\n'
# No backtick of the output may end the block that holds it.
head -c "$limit" "$file" | tr '\140' "'"
if [ "$(wc -c <"$file")" -gt "$limit" ]; then printf '\n[... cut here; all of it is in the log of the job]\n'; fi
printf '\n```\n\n</details>\n'
