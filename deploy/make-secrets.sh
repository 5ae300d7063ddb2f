#!/bin/sh
# Writes one new password for each database role into a folder (default: deploy/secrets), for docker-compose.yml.
# What is there already stays. A role's file is a libpq service file, which every program of ours reads by PGSERVICEFILE.
set -eu
folder=${1:-$(dirname "$0")/secrets}
mkdir -p "$folder"
# The folder keeps other users of this host out. The files themselves must be readable: containers see them one by
# one, under users of their own.
chmod 0700 "$folder"
password() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
keep() { [ -s "$folder/$1" ] && echo "$folder/$1 is there already"; }
write() { cat > "$folder/$1.new" && chmod 0644 "$folder/$1.new" && mv "$folder/$1.new" "$folder/$1"; }
keep superuser || password | write superuser
for role in migrator api worker; do
  keep "$role" || printf '[tilewright]\nuser=tilewright_%s\npassword=%s\n' "$role" "$(password)" | write "$role"
done
