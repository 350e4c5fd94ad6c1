module github.com/sluicelimits/sluice/bench

go 1.26

replace github.com/sluicelimits/sluice => ../
