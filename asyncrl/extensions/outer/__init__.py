"""Several runs train one policy and exchange what they learn."""
