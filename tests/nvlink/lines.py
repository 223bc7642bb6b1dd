"""Kernel lines for the tests, in the wording of the driver, about made-up GPUs, times and processes."""

FAR = "0x00000000 0x00000000 0x00000000 0x00000000"
STAND_OFF = "0x00000001 0x00000000 0x00100000 0x00000004"


def at(seconds: float, text: str) -> str:
    return f"[{seconds:12.6f}] {text}"


def xid(gpu: str, code: int, text: str, *, seconds: float | None = None, pid: int | None = None) -> str:
    who = f", pid={pid}, name=python3" if pid is not None else ""
    line = f"NVRM: Xid (PCI:0000:{gpu}:00): {code}{who}, {text}"
    return line if seconds is None else at(seconds, line)


def link_word(link: int, subcode: int = 0, unit: int = 0x1C6) -> str:
    return f"0x{(subcode << 20) | (link << 13) | unit:08x}"


def link_down(gpu: str, link: int, subcode: int, *, seconds: float | None = None) -> str:
    text = f"NETIR_LINK_EVT  Fatal   XC0 i0 Link {link:02d} ({link_word(link, subcode)} 0x00000000 {FAR})"
    return xid(gpu, 149, text, seconds=seconds)


def churn(gpu: str, link: int, *, seconds: float | None = None) -> str:
    """What a GPU logs when the process at the other end of a link ended."""
    text = f"RLW_RXPIPE Nonfatal XC0 i0 Link {link:02d} ({link_word(link, 0, 0xC2)} 0x00000008 {STAND_OFF})"
    return xid(gpu, 145, text, seconds=seconds)


def torn_down(gpu: str, pid: int, channel: int, *, seconds: float, previous: int = 149) -> str:
    return xid(gpu, 45, f"Ch {channel:08x} caused by previous Xid {previous}", seconds=seconds, pid=pid)


def recovery(gpu: str, before: int, after: int, *, seconds: float | None = None) -> str:
    words = {0: "None", 1: "GPU Reset Required", 2: "Node Reboot Required", 4: "Drain and Reset"}
    text = f"GPU recovery action changed from 0x{before:x} ({words[before]}) to 0x{after:x} ({words[after]})"
    return xid(gpu, 154, text, seconds=seconds)


def lost(gpu: str, *, seconds: float | None = None) -> str:
    line = f"NVRM: Xid (PCI:0000:{gpu}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return line if seconds is None else at(seconds, line)


def switch_fault(switch: int, link: int, *, seconds: float, code: int = 20034) -> str:
    return at(
        seconds, f"nvidia-nvswitch{switch}: SXid (PCI:0000:0{switch}:00.0): {code}, Fatal, Link {link} LTSSM Fault Up"
    )
