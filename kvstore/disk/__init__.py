"""The SSD tier's disk: files of slots and the index beside them, behind one seam."""
