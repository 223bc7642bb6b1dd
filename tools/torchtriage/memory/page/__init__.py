"""The memory report as one page that needs no network: verdict, timeline, holders, flame graph."""
