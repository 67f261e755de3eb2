mod digests; mod files; mod ledger; mod pace;
