"""Makes repositories forget what came after their start: other branches, remotes, reflogs, unreachable objects."""

from __future__ import annotations

SCRUB = r"""
set -e
root=$0
[ -d "$root" ] || exit 0
export GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
find "$root" -name .git -type d -prune | while read -r dir; do
    if ! command -v git >/dev/null; then
        echo "$dir: no git to remove its history with; set keep_git_history = true, or add git to the image" >&2
        exit 1
    fi
    # Settings of the repository must not start programs.
    g() { git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c gc.auto=0 \
        -c core.pager=cat --git-dir="$dir" "$@"; }
    [ -f "$dir/HEAD" ] || continue
    own=$(g symbolic-ref -q HEAD || true)
    start=$(g rev-parse -q --verify 'HEAD^{commit}' || true)
    for remote in $(g remote); do g remote remove "$remote"; done
    g for-each-ref --format='%(refname)' | while read -r ref; do
        [ "$ref" != "$own" ] || continue
        case $ref in
        refs/tags/*)
            at=$(g rev-parse -q --verify "$ref^{commit}" || true)
            # Versions are read from tags of the past.
            [ -z "$start" ] || [ -z "$at" ] || ! g merge-base --is-ancestor "$at" "$start" || continue ;;
        esac
        g update-ref --no-deref -d "$ref"
    done
    rm -rf "$dir/logs" "$dir/worktrees" "$dir/sequencer" "$dir"/rebase-* "$dir"/BISECT_* "$dir/refs/stash"
    for name in ORIG_HEAD FETCH_HEAD MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD REBASE_HEAD AUTO_MERGE; do
        rm -f "$dir/$name"
    done
    rm -f "$dir"/objects/pack/*.keep "$dir"/objects/pack/*.promisor "$dir/objects/pack/multi-pack-index"
    rm -rf "$dir"/objects/info/commit-graph "$dir"/objects/info/commit-graphs
    # -a also brings in what lies in another repository's store.
    g repack -a -d -q
    rm -f "$dir/objects/info/alternates"
    g prune --expire=now
    g prune-packed -q
    held=$(g cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u | wc -l)
    wanted=$( (g rev-list --objects --all --indexed-objects --no-object-names
        [ -z "$start" ] || g rev-list --objects --no-object-names HEAD) | sort -u | wc -l)
    if [ "$held" != "$wanted" ]; then
        echo "$dir: $held objects are left of which $wanted belong to its start" >&2
        exit 1
    fi
done
"""
"""A program for `sh -c`; its argument 0 is the folder below which repositories lie."""
