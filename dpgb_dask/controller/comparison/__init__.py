"""What a fit would cost under other accountants; nothing here charges or releases."""
