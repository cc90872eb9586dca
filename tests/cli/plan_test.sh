# plan: offers, prices, goals, mistakes.
scenario job.yaml
expect 0 plan job.yaml --tokens 1B --machines dgx-h100:1 -q; prints "To train on 1.000 B tokens"; prints "rehearse run job.yaml"; narrow out
expect 0 plan job.yaml --tokens 1B --machines dgx-h100:1 --price dgx-h100=2.5 --json -q; prints '"cost"'; prints '"chosen": true'
expect 1 plan job.yaml --tokens 100T --within 1h --machines dgx-h100:1 -q; prints "Nothing on offer meets the goal"
expect 0 plan job.yaml --tokens 1B --machines dgx-h100:1,1 --machines dgx-h100:1 -q; checks=$((checks + 1)); [ "$(grep -c '1 x dgx-h100 ' out)" -eq 1 ] || complain "an offer made twice is shown twice"
expect 2 plan job.yaml --tokens 1X --machines dgx-h100:1; says "--tokens"
expect 2 plan job.yaml --tokens 1T --machines dgx-h100; says "--machines"
expect 2 plan job.yaml --tokens 1T --machines dgx-h1000:1; says "dgx-h1000"
expect 2 plan job.yaml --tokens 1T --within 30; says "lacks its unit"
expect 2 plan job.yaml --tokens 1T --budget 5; says "--price"
expect 2 plan job.yaml --tokens 2 --machines dgx-h100:1; says "less than the 32768 of one step"
expect 2 plan job.yaml --tokens 1B --machines dgx-h100:1 --price dgx-a100=2; says "'dgx-a100' is not among the machines on offer"
