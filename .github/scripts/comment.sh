#!/bin/sh
# comment.sh FILE: puts a text on a pull request as one comment. The first line of the file is its marker: a comment of
# ours that starts with it is updated in place, so that a pull request never collects them.
# Needs GH_TOKEN, GITHUB_REPOSITORY and PULL_REQUEST, and the programs gh and sh.
set -eu
file=$1
number=${PULL_REQUEST:?number of the pull request}
repository=${GITHUB_REPOSITORY:?owner/name}
marker=$(head -n 1 "$file")
case $number in *[!0-9]*) echo "found PULL_REQUEST=$number; expected a number" >&2 && exit 1 ;; esac
case $marker in
'<!-- fleet '*' -->') ;;
*) echo "found no marker in the first line of $file; expected <!-- fleet ... -->" >&2 && exit 1 ;;
esac
# Only the workflow's own account: anybody can write a comment that starts with the marker.
export marker
mine=$(gh api --paginate "repos/$repository/issues/$number/comments?per_page=100" \
    --jq '.[] | select(.user.login == "github-actions[bot]" and (.body | startswith(env.marker))) | .id' | head -n 1)
if [ -n "$mine" ]; then
    gh api --silent --method PATCH "repos/$repository/issues/comments/$mine" -F "body=@$file"
    echo "updated comment $mine"
else
    gh api --silent --method POST "repos/$repository/issues/$number/comments" -F "body=@$file"
    echo "made a comment"
fi
