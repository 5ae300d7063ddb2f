"""What commands do on this machine: its devices, its checks, the programs that `up` starts, reports measured here."""
