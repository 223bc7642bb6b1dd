"""Stack dumps: read what py-spy, faulthandler and pystack wrote, say what each rank does, compare the ranks."""
