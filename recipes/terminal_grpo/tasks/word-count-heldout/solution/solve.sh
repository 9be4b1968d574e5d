#!/bin/bash
tr 'A-Z' 'a-z' </app/text.txt | tr -cs 'a-z' '\n' | sort | uniq -c | sort -k1,1nr -k2,2 | awk 'NR <= 3 { print $2 }' >/app/top.txt
