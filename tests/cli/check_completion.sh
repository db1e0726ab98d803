#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The completions of tools/completion, asked for by the shells themselves: each offers every command
# of dlxctl, every option of the programs, values, and topics of a running daemon.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-$PWD/build}
tmp=$(mktemp -d)
daemon=
finish() {
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" || true
    fi
    rm -rf "$tmp"
}
trap finish EXIT
mkdir "$tmp/bin" "$tmp/folder"
for program in dlxctl dlpackd dlpackd-keeper; do
    ln -s "$build/$program" "$tmp/bin/"
done
export PATH=$tmp/bin:$PATH DLX_SOCKET=$tmp/s DLX_AUTOSPAWN=no
tools/completion "$tmp/made" "$tmp"/bin/dlxctl "$tmp"/bin/dlpackd "$tmp"/bin/dlpackd-keeper
cd "$tmp/folder" # whose only file is this one
touch a_file
fail() {
    echo "check_completion: $*"
    exit 1
}

# -- the shells ------------------------------------------------------------------------------------
# ask_SHELL LINE: what it offers for the last word of LINE, one a line.

cat >"$tmp/ask.bash" <<'BASH'
# Words as readline makes them: = is one of its own.
read -ra COMP_WORDS <<<"${1//=/ = }"
[[ $1 == *[' =']  ]] && COMP_WORDS+=('')
[[ $1 == *= ]] && unset 'COMP_WORDS[-1]'
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
source "$2/bash/${COMP_WORDS[0]}"
function=$(complete -p "${COMP_WORDS[0]}")
function=${function#*-F }
"${function%% *}"
printf '%s\n' "${COMPREPLY[@]}"
BASH
ask_bash() { bash --norc "$tmp/ask.bash" "$1" "$tmp/made" | sed 's/=$//'; }

# What zsh would show goes to a file, and it ends.
mkdir "$tmp/zsh"
cat >"$tmp/zsh/.zshrc" <<'ZSH'
PROMPT=
fpath=($MADE/zsh $fpath)
autoload -U compinit
compinit -u -D
bindkey '^I' complete-word
compadd() {
    if (( ${@[(I)-[OAD]]} )); then
        builtin compadd "$@"
        return
    fi
    local -a hits
    builtin compadd -A hits "$@"
    (( $#hits )) && print -rl -- $hits >>$HITS
}
finish() { kill -KILL $$ }
comppostfuncs=(finish)
ZSH
ask_zsh() {
    : >"$tmp/hits"
    printf '%s\t' "$1" | MADE=$tmp/made HITS=$tmp/hits ZDOTDIR=$tmp/zsh TERM=dumb HOME=$tmp \
        timeout 60 script -qec 'zsh -d -i' /dev/null >/dev/null 2>&1 || true
    sed 's/=$//' "$tmp/hits"
}

cat >"$tmp/ask.fish" <<'FISH'
for file in $argv[2]/fish/*.fish
    source $file
end
complete -C $argv[1]
FISH
ask_fish() {
    HOME=$tmp XDG_CONFIG_HOME=$tmp XDG_DATA_HOME=$tmp \
        fish --no-config "$tmp/ask.fish" "$1" "$tmp/made" | cut -f1 | sed 's/=$//'
}

# -- the questions ---------------------------------------------------------------------------------
n=0
offers() { # offers LINE WORD...: it does
    local line=$1 word
    shift
    "ask_$shell" "$line" >"$tmp/said"
    for word in "$@"; do
        grep -qxF -e "$word" "$tmp/said" ||
            fail "$shell: '$line' does not offer $word: $(tr '\n' ' ' <"$tmp/said")"
        n=$((n + 1))
    done
}
lacks() { # lacks LINE WORD: it does not offer it
    "ask_$shell" "$1" >"$tmp/said"
    if grep -qxF -e "$2" "$tmp/said"; then fail "$shell: '$1' offers $2"; fi
    n=$((n + 1))
}
# What argp says in its other form of help.
options() { "$@" --usage | tr ' []|' '\n' | grep -oE '^--[a-z0-9-]+' | sort -u; }

mapfile -t commands < <(sed -nE 's/^ *\{"([a-z-]+)", cmd_.*/\1/p' "$OLDPWD/cli/main.c")
[ "${#commands[@]}" -ge 10 ] || fail "${#commands[@]} commands in cli/main.c"
"$build/dlpackd" --socket "$DLX_SOCKET" --ready-fd 3 3>"$tmp/ready" 2>"$tmp/log" &
daemon=$!
until [ -s "$tmp/ready" ]; do kill -0 "$daemon" || fail "dlpackd: $(cat "$tmp/log")"; done
printf 12345678 >"$tmp/raw"
for topic in cam/front cam/rear weights; do
    dlxctl pub "$topic" --dtype uint8 --shape 8 --retain 1 "$tmp/raw" >/dev/null
done

questions() {
    local command
    offers 'dlxctl ' "${commands[@]}"
    mapfile -t some < <(options dlxctl)
    offers 'dlxctl --' "${some[@]}"
    for command in "${commands[@]}"; do
        mapfile -t some < <(options dlxctl "$command")
        offers "dlxctl $command --" "${some[@]}"
        case $command in
        pub) ;;
        clients | doctor | kick | quota | serve) lacks "dlxctl $command " cam/front ;;
        *) offers "dlxctl $command " cam/front cam/rear weights ;;
        esac
    done
    for program in dlpackd dlpackd-keeper; do
        mapfile -t some < <(options $program)
        offers "$program --" "${some[@]}"
    done
    lacks 'dlxctl l' info
    offers 'dlxctl --json l' ls
    offers 'dlxctl ' record play bridge
    offers 'dlxctl play a' a_file
    lacks 'dlxctl info ' ls
    offers 'dlxctl info cam/' cam/front cam/rear
    lacks 'dlxctl info cam/' weights
    offers 'dlxctl pub cam/front a' a_file
    offers 'dlxctl save cam/front a' a_file
    offers 'dlxctl --socket a' a_file
    offers 'dlpackd --config a' a_file
    offers 'dlpackd --allow-user r' root
}
# The values of options: what the program refuses is not offered.
values() {
    local line=$1 word
    "ask_$shell" "$line" | sed 's/.*=//' >"$tmp/words"
    [ -s "$tmp/words" ] || fail "$shell: '$line' offers nothing"
    while read -r word; do
        case $line in
        dlpackd*) dlpackd "--memory=$word" --check-config=/dev/null ;;
        *)
            DLX_SOCKET=$tmp/none ${line% *} "${line##* }$word" topic --dtype uint8 --shape 8 \
                "$tmp/raw"
            ;;
        esac >"$tmp/said" 2>&1 && status=0 || status=$?
        [ "$status" != 2 ] || fail "$shell: '$line$word': $(cat "$tmp/said")"
        n=$((n + 1))
    done <"$tmp/words"
}

asked=()
for shell in bash zsh fish; do
    if ! command -v $shell >/dev/null; then
        echo "SKIP: no $shell (tools/setup.sh installs it where it is to be had)"
        continue
    fi
    questions
    values 'dlxctl pub --dtype='
    values 'dlpackd --memory='
    asked+=("$shell")
done
echo "check_completion: $n answers of ${asked[*]}"
