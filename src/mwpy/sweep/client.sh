#!/bin/sh
# Makes runs of `mwpy sweep ... --http PORT` on a machine that has only curl, awk and a shell.
#   sh client.sh http://HOST:PORT SESSION
# Each run has a folder of its own, below the present one: several clients may share a file system.
server=$1 session=$2 me="client=$(hostname)-$$"
ask() { # ask PATH [CURL-OPTION ...]: prints the content, then the code of the answer in a line of its own
  path=$1; shift
  curl -s -w '\n%{http_code}\n' "$@" "$server/$path?sessionid=$session&$me$more"
}
setting() { sed -n "s/^$1=//p" config.$$; }

more="&platform=$(uname -s)" ; ask config > config.$$
[ "$(tail -n 1 config.$$)" = 200 ] || { head -n 1 config.$$ >&2; rm -f config.$$; exit 1; }
worker=$(setting Worker) pause=$(setting Ping) more=
if [ -n "$worker" ]; then
  curl -s -o "worker.$$" "$server/worker?sessionid=$session&$me" && chmod +x "worker.$$"
fi

while :; do
  ask task > task.$$ || break                                  # the server has ended
  code=$(tail -n 1 task.$$)
  [ "$code" = 503 ] && { sleep 2; continue; }
  [ "$code" = 200 ] || { head -n 1 task.$$ >&2; break; }
  ticket=$(sed -n 's/^Ticket=//p' task.$$ | head -n 1) more="&ticket=$ticket"
  folder="$session-$ticket"; mkdir -p "$folder"; mv task.$$ "$folder/.task"
  [ -z "$worker" ] || cp "worker.$$" "$folder/$worker"
  ( cd "$folder" && awk '                                      # the inputs become files
      /^ENDOFCONTENT$/ { inside = 0; close(file); next }
      inside           { print > file; next }
      /^\[Input .*\]$/ { file = substr($0, 8, length($0) - 8); inputs[file]; next }
      /^Content=<<ENDOFCONTENT$/ { inside = 1; dir = file
        if (sub("/[^/]*$", "", dir)) system("mkdir -p \"" dir "\""); printf "" > file }' .task
    command=$(sed -n 's/^CommandLine=//p' .task | head -n 1)
    [ -f STDIN ] || : > STDIN
    exec sh -c "$command" < STDIN > STDOUT ) & run=$!
  while sleep "$pause" && kill -0 $run 2> /dev/null; do        # somebody else has it, or the server has ended: stop
    case $(ask ping | tail -n 1) in 204) ;; *) kill $run 2> /dev/null ;; esac
  done & pings=$!
  if wait $run; then
    sed -n 's/^\[Result \(.*\)\]$/\1/p' "$folder/.task" | while read -r name; do
      printf '[Result]\nName=%s\nContent=<<ENDOFCONTENT\n' "$name"
      awk 1 "$folder/$name"                                    # a last line without its end gets one
      echo ENDOFCONTENT
    done > "$folder/.results"
    ask complete --data-binary "@$folder/.results" > /dev/null
  else
    ask failed > /dev/null
  fi
  kill $pings 2> /dev/null; more=; rm -rf "$folder"
done
rm -f config.$$ task.$$ worker.$$
