"""What a run looked like: journal → plain summaries → charts, figures, one HTML page. No torch here."""
