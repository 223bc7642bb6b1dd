"""Reading of lines: which texts can matter, who prints, and the one pass over all of them."""
