"""Commands' work on this machine: its devices, its checks, the programs that `up` starts, reports measured here."""
