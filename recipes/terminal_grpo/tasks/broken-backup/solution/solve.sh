#!/bin/bash
cat >/app/backup.sh <<'END'
#!/bin/bash
cd "$(dirname "$0")" || exit 1
mkdir -p backup
for file in etc/*.conf; do
    cp "$file" backup/
done
END
