"""Find, recognise and open what a job left behind, safely; clean and check what is quoted from it."""
