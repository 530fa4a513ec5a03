# Dump the ledger; a dump has its final name only when it is whole, and old ones go only after a new one is there.
dump="$BACKUP_FOLDER/ledger-$(date -u +%Y%m%dT%H%M%SZ).dump"
pg_dump --format=custom --file="$dump.part"
pg_restore --list "$dump.part" >/dev/null
sync "$dump.part"
mv "$dump.part" "$dump"
find "$BACKUP_FOLDER" -name 'ledger-*.dump*' -mtime "+$KEEP_DAYS" -delete
echo "$dump: $(wc -c <"$dump") bytes"
